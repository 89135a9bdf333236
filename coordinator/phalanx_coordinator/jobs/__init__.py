"""Jobs that outlive who asked for them: started, queued, taken over, cancelled."""
