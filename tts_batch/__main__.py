"""`python -m tts_batch`: the same as the `tts-batch` command."""

import sys

from tts_batch.cli.main import main

sys.exit(main())
