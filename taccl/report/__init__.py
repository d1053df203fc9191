"""What is printed or drawn: tables, traces, pages."""
