"""Programs that wrote vectors, with the Java classes that they ask."""
