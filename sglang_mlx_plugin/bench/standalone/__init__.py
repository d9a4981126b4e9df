"""Files that are run by path, in environments that may have nothing of ours.

They have a folder of their own because Python puts a script's folder first on the path.
"""
