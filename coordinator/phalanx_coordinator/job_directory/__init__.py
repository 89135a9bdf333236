"""A job's directory as its coordinator writes it; phalanx_proto.job_files reads it."""
