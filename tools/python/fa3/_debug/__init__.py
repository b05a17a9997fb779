"""What users look at to find out what is wrong: calls as they are made, and their numbers."""
