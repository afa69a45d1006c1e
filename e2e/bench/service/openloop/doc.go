// Package openloop loads a server of one-byte requests and tells how long answers took.
//
// # What it promises
//
// In an open loop operations begin at moments that were fixed before, whatever the server
// does, and the time of each counts from its moment. A server that stalls for a second
// is seen by all operations of that second, also by those for which there was no free slot; a
// tool that waits for an answer before it asks again would see one slow operation
// ("coordinated omission"). Percentiles are exact: every time is kept and sorted. What
// has not ended when the run ends is counted, with the time it has waited so far.
//
// In a closed loop, Rate 0, each slot begins the next operation when its last one ended: that gives
// the highest rate of so many clients.
//
// One thread serves all slots by epoll(7), so that the tool takes little of the processors that
// it shares with what is measured. It makes no traffic but to the addresses it is given.
//
// Start reading at Load.Run. Echo is the other end.
package openloop
