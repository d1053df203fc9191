"""``taccl tune``: a directory of programs, the best one for every collective and size.

The search makes candidates (:mod:`spec`), runs them on any executor (:mod:`candidate`,
:mod:`executors`) and remembers them (:mod:`journal`); the lower envelope of their times
(:mod:`envelope`) says which file serves which sizes, and :mod:`library` writes them.
"""
