"""The job: workers, journal, resume, clips and manifest."""
