package node

import "context"

// pause reaps orphans until it gets a signal to end. It is the first process of a pod's sandbox.
func pause(ctx context.Context, args []string) (any, error) {
	if err := flagsOf("pause").Parse(args); err != nil {
		return nil, err
	}
	go reap()
	<-ctx.Done()
	return nil, nil
}
