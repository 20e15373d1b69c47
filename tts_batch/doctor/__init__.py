"""What `tts-batch doctor` looks at."""
