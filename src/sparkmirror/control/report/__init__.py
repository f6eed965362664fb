"""Reports about a flow: plan, comparison, gaps, history."""
