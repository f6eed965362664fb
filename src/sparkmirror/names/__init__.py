"""Topic names: replication policies, topic filters, and Java's regular expressions."""
