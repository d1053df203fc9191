"""Programs: schedules lowered to MSCCL threadblocks, their XML, and their judges."""
