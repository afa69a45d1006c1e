package pod

import "errors"

// Undo is a list of functions that revert completed steps if a later step fails. The zero value is
// an empty list.
type Undo struct {
	steps []func() error
}

// Add appends f to the list. Run calls functions in reverse order.
func (u *Undo) Add(f func() error) { u.steps = append(u.steps, f) }

// Run calls all functions, the last first, and empties the list. It continues after errors, and
// joins them.
func (u *Undo) Run() error {
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		errs = append(errs, u.steps[i]())
	}
	u.steps = nil
	return errors.Join(errs...)
}
