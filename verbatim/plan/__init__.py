"""What a link would do, found out by code that changes nothing."""
