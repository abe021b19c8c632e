"""What a person can do with Vitrail: one module and one function for each verb, for Python and for
the command line alike. Arguments in, a record out; nothing here prints."""
