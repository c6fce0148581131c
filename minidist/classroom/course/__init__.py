"""For an instructor:

release.py        a student's edition, and autograders for Gradescope
kit/              what these get in addition to the project: scripts, and instructions for assistants
handed_in.py      which file is which lesson's exercise, among the files that a browser or an LMS leaves
roster.py         the students of a class, and the owner of each file
gradebook.py      a class: a row for each student, a column for each lesson
journal.py        the grades so far, by what they depend on
sheets.py         points.csv, with columns of the instructor's, and what Canvas or Moodle imports
similar.py        hand-ins that are alike
feedback.py       a page for each student
"""
