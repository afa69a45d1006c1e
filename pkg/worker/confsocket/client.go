package confsocket

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxSet bounds one configuration: 65,536 peers, the library's limit, with 8 allowed IPs each.
	maxSet = 64 << 20
	// largeSet is the size above which configurations are read one at a time, so that clients
	// cannot fill the memory together.
	largeSet = 1 << 20
	// maxClients bounds the clients that are connected at once.
	maxClients = 32
	// requestPatience is the time that a client has to send a request that it began, and
	// answerPatience the time to read its answer.
	requestPatience = 10 * time.Second
	answerPatience  = 10 * time.Second
)

// clients are the clients of a configuration socket. The zero value is ready.
type clients struct {
	mu sync.Mutex
	// idle are the clients that are waited for: longest first. busy counts the others, whose
	// operation is under way.
	idle []io.Closer
	busy int
	// large is held while a large configuration is read and applied.
	large sync.Mutex
}

// enter notes that a client is waited for. Where there are too many, the one that was waited for
// longest is closed; if all are busy, the new one is, and enter reports false.
func (c *clients) enter(client io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle)+c.busy >= maxClients {
		if len(c.idle) == 0 {
			client.Close()
			return false
		}
		c.idle[0].Close()
		c.idle = c.idle[1:]
	}
	c.idle = append(c.idle, client)
	return true
}

// begin records that the client's operation is under way. It returns false if enter closed the
// client.
func (c *clients) begin(client io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.remove(client) {
		return false
	}
	c.busy++
	return true
}

// end notes that the operation is done and the client is waited for.
func (c *clients) end(client io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	c.idle = append(c.idle, client)
}

// leave forgets a client that is waited for.
func (c *clients) leave(client io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(client)
}

func (c *clients) remove(client io.Closer) bool {
	for i := range c.idle {
		if c.idle[i] == client {
			c.idle = append(c.idle[:i:i], c.idle[i+1:]...)
			return true
		}
	}
	return false
}

// Serve answers the clients of l until it is closed.
func (s *Server) Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go s.handle(c)
	}
}

// deadliner is a client that need not be waited for longer than until a time.
type deadliner interface {
	SetDeadline(t time.Time) error
}

// within bounds the wait for a client; 0 removes the bound.
func within(c io.ReadWriteCloser, d time.Duration) {
	if c, ok := c.(deadliner); ok {
		var end time.Time
		if d != 0 {
			end = time.Now().Add(d)
		}
		_ = c.SetDeadline(end)
	}
}

// handle answers one client until it leaves, breaks the protocol or is too slow.
func (s *Server) handle(c io.ReadWriteCloser) {
	defer c.Close()
	if !s.clients.enter(c) {
		s.refuse()
		return
	}
	defer s.clients.leave(c)

	r := bufio.NewReader(c)
	for {
		within(c, 0)
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			s.refuse()
		}
		if err != nil {
			return
		}
		op := string(line)

		body := request{server: s, renew: func() { within(c, requestPatience) }}
		body.renew()
		if err := body.read(r); err != nil {
			body.done()
			s.refuse()
			return
		}
		if !s.clients.begin(c) {
			body.done()
			s.refuse()
			return
		}
		answer := s.answer(op, body.text)
		body.done()
		s.clients.end(c)
		if answer == nil {
			return
		}

		within(c, answerPatience)
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// request is the body of a request.
type request struct {
	server *Server
	// renew lets the client have requestPatience from now on.
	renew func()
	text  []byte
	large bool
}

// read reads the lines up to an empty one, which it swallows.
func (q *request) read(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		whole := err == nil && (len(q.text) == 0 || q.text[len(q.text)-1] == '\n')
		if whole && len(line) == 1 {
			return nil
		}
		if len(q.text)+len(line) > maxSet {
			return fmt.Errorf("configuration is larger than %d bytes", maxSet)
		}
		if len(q.text)+len(line) > largeSet && !q.large {
			q.server.clients.large.Lock()
			q.large = true
			q.renew()
		}
		q.text = append(q.text, line...)
	}
}

// done forgets the text, which may hold keys.
func (q *request) done() {
	clear(q.text)
	q.text = nil
	if q.large {
		q.server.clients.large.Unlock()
	}
}
