// kafka-go as people use it: a writer with acks=all, or a member of a group, until the pipe is closed.
//
//	program writer|reader BOOTSTRAP TOPIC GROUP
//
// A writer prints `acked VALUE` for each record that was acknowledged, a reader `got PARTITION OFFSET VALUE` for each
// that it has handled, and commits it after that. kafka-go has no idempotent producer: what it sends again after a lost
// answer may be there twice.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

var out = bufio.NewWriter(os.Stdout)

func say(format string, values ...any) {
	fmt.Fprintf(out, format+"\n", values...)
	out.Flush()
}

func main() {
	role, brokers, topic, group := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[4]
	over, end := context.WithCancel(context.Background())
	go func() { // whoever started us closes our input when it is over
		io.Copy(io.Discard, os.Stdin)
		end()
	}()
	if role == "writer" {
		write(over, brokers, topic)
	} else {
		read(over, brokers, topic, group)
	}
	say("done")
}

func write(over context.Context, brokers []string, topic string) {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(brokers...),
		Topic:        topic,
		Balancer:     &kafka.Hash{},
		RequiredAcks: kafka.RequireAll,
		MaxAttempts:  1000,
		BatchTimeout: 5 * time.Millisecond,
	}
	defer writer.Close()
	for number := 0; over.Err() == nil; number += 5 {
		messages := make([]kafka.Message, 5)
		for i := range messages {
			key, value := fmt.Sprintf("key-%d", (number+i)%20), fmt.Sprintf("%d", number+i)
			messages[i] = kafka.Message{Key: []byte(key), Value: []byte(value)}
		}
		for len(messages) > 0 { // those that failed are written again, as its documentation says
			err := writer.WriteMessages(context.Background(), messages...)
			var each kafka.WriteErrors
			var left []kafka.Message
			for i, message := range messages {
				switch {
				case err == nil || errors.As(err, &each) && each[i] == nil:
					say("acked %s", message.Value)
				default:
					left = append(left, message)
				}
			}
			if messages = left; err != nil {
				fmt.Fprintln(os.Stderr, err)
				time.Sleep(100 * time.Millisecond)
			}
		}
		time.Sleep(25 * time.Millisecond)
	}
}

func read(over context.Context, brokers []string, topic, group string) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: brokers, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 500 * time.Millisecond, CommitInterval: 200 * time.Millisecond,
	})
	for over.Err() == nil {
		message, err := reader.FetchMessage(over)
		if err == nil {
			say("got %d %d %s", message.Partition, message.Offset, message.Value)
			err = reader.CommitMessages(context.Background(), message)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if err := reader.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
