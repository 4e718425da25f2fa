"""What a program is, independent of any config."""
