"""How good is it: pure functions of scores, features and labels."""
