"""What a cluster holds, before there is a link: looked at, and what moving it takes."""
