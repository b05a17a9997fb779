// The table of one row that a kernel's build includes in rows.def's place (-DFA3_ROWS): that of -DFA3_ROW, so that no
// other row is a reason to build it anew.
FA3_ROW
