"""Code2Wav: codes to waveforms."""
