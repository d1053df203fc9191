"""From a verified schedule to a threadblock program, pass by pass."""
