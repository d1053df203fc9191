"""What is asked and what is found: problems, their routing choices, schedules."""
