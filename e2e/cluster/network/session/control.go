package session

import (
	"errors"

	"github.com/kubeveil/kubeveil/pkg/leak"
)

// ControlRun calls do as the control run. The oracle's results during do are kept apart, because
// the oracle must see plaintext there.
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
	// Take the results even after an error, so that later frames do not count for the reference
	// network.
	after, takeErr := wire.Take()
	s.AddControl(after)
	s.Note("%d of %d frames are plaintext: %v", s.parts.control.Plaintext, s.parts.control.Frames,
		s.parts.control.Kinds)
	return errors.Join(err, takeErr)
}

// AddControl adds results that a case took from the oracle during the control run.
func (s *Session) AddControl(seen leak.Result) { s.parts.control = s.parts.control.Plus(seen) }
