"""The tests; a package, so that they find the project and each other from wherever pytest is started."""
