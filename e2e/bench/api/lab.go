package api

import (
	"context"
	"errors"

	"github.com/kubeveil/kubeveil/e2e/bench/api/faultlab"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// inLab runs a part in a lab of the family. It reuses the lab of the previous part if that has the
// same family. If the part fails, it closes the lab.
func (s *run) inLab(ctx context.Context, family lab.Family,
	part func(context.Context, *faultlab.Lab) error) error {
	if s.lab != nil && s.lab.Family != family {
		if err := s.closeLab(); err != nil {
			return err
		}
	}
	if s.lab == nil {
		b, err := faultlab.New(ctx, Suite, family)
		if err != nil {
			return err
		}
		s.lab = b
	}
	if err := part(ctx, s.lab); err != nil {
		return errors.Join(err, s.closeLab())
	}
	return nil
}

func (s *run) closeLab() error {
	if s.lab == nil {
		return nil
	}
	b := s.lab
	s.lab = nil
	return b.Close()
}
