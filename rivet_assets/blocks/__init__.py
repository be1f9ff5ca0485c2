"""What an export may say: the values of its block, and the rules between them."""
