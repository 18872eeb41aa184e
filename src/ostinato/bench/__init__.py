"""What users run to measure; never imported by what is measured."""
