"""Links (bridges): topics that this broker and another one have in common."""
