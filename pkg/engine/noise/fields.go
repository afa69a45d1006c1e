package noise

import "time"

// Fields reads or writes values in a fixed order: Visit describes the values that another process
// needs to take over from this one.
type Fields interface {
	// Raw takes bytes in place, without a copy elsewhere.
	Raw(b []byte)
	Flag(b *bool)
	Duration(d *time.Duration)
}

// Visit visits the keys of a peer and the exchange that waits for its response.
func (s *Secrets) Visit(f Fields) {
	f.Raw(s.Preshared[:])
	f.Raw(s.staticStatic[:])
	f.Raw(s.initiation.hash[:])
	f.Raw(s.initiation.chain[:])
	f.Raw(s.initiation.ephemeral[:])
	f.Flag(&s.Waiting)
	f.Flag(&s.Usable)
}

// Visit visits the secret of the cookies.
func (c *Checker) Visit(f Fields) {
	f.Raw(c.secret[:])
	f.Duration(&c.made)
	f.Flag(&c.valid)
}

// Visit visits the peer's cookie, and the message that the next one answers.
func (s *Stamper) Visit(f Fields) {
	f.Raw(s.last[:])
	f.Flag(&s.sent)
	f.Raw(s.cookie[:])
	f.Duration(&s.got)
	f.Flag(&s.present)
}
