"""What a lesson's notebook uses, and the pages over all lessons:

cell.py           `%%mpirun`: a cell on ranks
brought.py        what such a cell brings along from the notebook
unloaded.py       what IPython says of `%%mpirun` before the extension is loaded
lesson.py         gaps that are checked, predictions that are kept
watch.py          what notebooks note about a run
drawing.py        what the pictures of all lessons share: panels, legends, the words below a picture
slow_disk.py      a disk on a logical clock
index.py          the page over the copies: a tour, the map of the course, its paths, a student's points
syllabus.py       what the lessons' headers say
"""
