module xsched

go 1.26.8
