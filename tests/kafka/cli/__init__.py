"""Commands beside a mirror: bad input, plans and lists, verify, the doctor."""
