"""What a launch takes, before anything is compiled."""
