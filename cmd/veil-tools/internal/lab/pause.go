package lab

import "context"

// pause reaps orphans until it gets a signal to end. It is the first process of a pod's sandbox.
func pause(ctx context.Context, _ []string) (any, error) {
	go reap()
	<-ctx.Done()
	return nil, nil
}
