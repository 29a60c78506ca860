//! Machines that are lost, and inputs that change: never a wrong answer.
