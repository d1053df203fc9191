"""What makes and checks the pages of docs/."""
