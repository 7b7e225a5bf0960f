"""`flockmq replay`: logged messages are read again (`recording`) and published again (`player`)."""
