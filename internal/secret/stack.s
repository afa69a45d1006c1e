// func Reserve()
// The frame makes the runtime grow the stack before it is entered.
TEXT ·Reserve(SB), 0, $8192-0
	RET
