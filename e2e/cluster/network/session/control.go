package session

import (
	"errors"

	"github.com/kubeveil/kubeveil/pkg/leak"
)

// ControlRun runs do as the control run: in a part of the run of its own, whose plaintext must be
// seen by the same oracle on the same wire.
func (s *Session) ControlRun(do func() error) error {
	wire := s.Lab.Oracle()
	before, err := wire.Take()
	if err != nil {
		return err
	}
	s.parts.before, s.parts.ran = before, true
	s.control = true
	defer func() { s.control = false }()
	err = do()
	// Also after an error: later frames must not count for the reference network.
	after, takeErr := wire.Take()
	s.AddControl(after)
	s.Note("%d of %d frames are plaintext: %v", s.parts.control.Plaintext, s.parts.control.Frames,
		s.parts.control.Kinds)
	return errors.Join(err, takeErr)
}

// AddControl counts what the oracle saw during the control run and was taken from it.
func (s *Session) AddControl(seen leak.Result) { s.parts.control = s.parts.control.Plus(seen) }
