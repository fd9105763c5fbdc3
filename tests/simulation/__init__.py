"""Both phases as they are, against fakes of everything outside, under a scheduler that decides all that is
left to chance."""
