"""``taccl tune``: a directory of programs, the best one for every collective and size.

The search (:mod:`search`) chooses candidates (:mod:`candidate`), runs them on any executor
(:mod:`executors`) and remembers them (:mod:`directory`); the lower envelope of their times
(:mod:`choice`) says which file serves which sizes, and :mod:`library` makes the files, in a
directory with an index (:mod:`directory`).
"""
