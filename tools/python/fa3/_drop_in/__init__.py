"""What puts fa3 in the places of other packages, and what their interfaces have in common."""
