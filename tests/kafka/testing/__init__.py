"""The clusters that other tests stand on."""
