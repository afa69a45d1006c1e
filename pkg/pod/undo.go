package pod

import "errors"

// Undo is the list of what must be taken back when a later step fails. The zero
// value is empty and ready.
type Undo struct {
	steps []func() error
}

// Add puts f on the list; it is called before everything added earlier.
func (u *Undo) Add(f func() error) { u.steps = append(u.steps, f) }

// Run undoes all steps, the last first. It continues past errors, joins them, and empties the list.
func (u *Undo) Run() error {
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		errs = append(errs, u.steps[i]())
	}
	u.steps = nil
	return errors.Join(errs...)
}
