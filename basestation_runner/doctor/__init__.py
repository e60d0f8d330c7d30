"""`runner doctor`: whether an installation is as it must be. First facts are gathered, then pure checks judge them."""
