"""The worker program, `python -m tts_batch.worker FD`: serves the parent at the other end of the socket FD."""

from tts_batch.worker.program import main

if __name__ == "__main__":
    main()
