"""What commands share: options, connections, tables, errors."""
