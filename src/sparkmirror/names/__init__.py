"""What topics are called, and which of them are meant: replication policies and Java's regexes."""
